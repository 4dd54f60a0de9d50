"""Networks for images from timm (PyTorch Image Models)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cellcohort.extras import require
from cellcohort.messages import listed
from cellcohort.models._normalisation import BATCH_NORMS, Norm, of_inputs, replace_batch_norms
from cellcohort.models._patch import checked_patch


class Timm(nn.Module):
    """Encode a patch of one slice by a network of timm, whose last layer gives the embedding.

    Nothing is downloaded: weights that were trained elsewhere are read from a file.

    Parameters
    ----------
    shape : (int, int, int, int)
        Channels, slices (1), height and width of one patch. The first layer has as many channels.
    name : str
        As ``timm.list_models()`` has it, such as "resnet18".
    embedding : int
        Length of the embedding.
    pretrained : bool
        Whether to begin with the weights in the file `weights`.
    weights : path, optional
        File of a state of this network, as timm or torch saves it; the last layer is left out, and the first is
        adapted to the number of channels.
    norm : {"batch", "experiment", "layer", "group", "instance", "none"}, optional
        What takes the place of every batch normalisation of the network, as for
        :class:`~cellcohort.models.conv2d.Conv2d`; by default the network is as timm has it.

    Raises
    ------
    ModuleNotFoundError
        timm is not installed.
    ValueError
        timm has no network `name`, the patch has several slices or a size that the network cannot read, or the network
        has no batch normalisation to replace; only one of `pretrained` and `weights` is given.
    FileNotFoundError
        There is no file `weights`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        name: str = "resnet18",
        embedding: int = 64,
        pretrained: bool = False,
        weights: str | Path | None = None,
        norm: Norm | None = None,
    ) -> None:
        require("timm")
        import timm  # here, so that other encoders do not need it

        super().__init__()
        channels, slices, *plane = checked_patch("timm", shape, embedding=embedding)
        if slices > 1:
            raise ValueError(
                f"networks of timm read images of one slice, but these patches have {slices} (shape={tuple(shape)}); "
                "use model=resnet or model=conv3d, which read volumes, or model=conv2d, to which slices are channels."
            )
        if not timm.is_model(name):
            near = get_close_matches(name, timm.list_models(), 5, 0.5)
            raise ValueError(
                f"timm {timm.__version__} has no network {name!r}. "
                + (f"Near it are {listed(near)}. " if near else "")
                + "timm.list_models() lists all."
            )
        options: dict[str, Any] = {"in_chans": channels, "num_classes": embedding}
        published = timm.get_pretrained_cfg(name)
        if published is not None and published.fixed_input_size:
            options["img_size"] = tuple(plane)
        if file := _file(pretrained, weights):
            overlay = {"file": file, "custom_load": file.endswith(".npz")}
            options |= {"pretrained": True, "pretrained_cfg_overlay": overlay}
        self.network = timm.create_model(name, **options)
        self.inputs = nn.Sequential(*([] if norm is None else of_inputs(norm, channels, 2)))
        if norm is not None and not any(isinstance(layer, BATCH_NORMS) for layer in self.network.modules()):
            raise ValueError(f"norm={norm!r} replaces batch normalisations, and {name} has none; leave norm out.")
        if norm not in (None, "batch"):
            replace_batch_norms(self.network, str(norm))

    def forward(self, patches: Tensor) -> Tensor:
        """Embed standardised samples.

        Parameters
        ----------
        patches : torch.Tensor of float, shape (batch, channels, 1, height, width)
            Standardised patches.

        Returns
        -------
        torch.Tensor of float, shape (batch, embedding)
        """
        embedding: Tensor = self.network(self.inputs(patches.squeeze(2)))
        return embedding


def _file(pretrained: bool, weights: str | Path | None) -> str | None:
    """Return the file of the weights to begin with, if any."""
    if pretrained and weights is None:
        raise ValueError(
            "pretrained=True needs the weights in a file, since nothing is downloaded: give weights=<path>, or leave "
            "pretrained out."
        )
    if weights is None:
        return None
    if not pretrained:
        raise ValueError(f"weights={weights} are read with pretrained=True only; say so, or leave weights out.")
    if not Path(weights).is_file():
        raise FileNotFoundError(f"weights={weights}: there is no such file; give the path of one.")
    return str(weights)
