"""A residual network from MONAI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cellcohort.models._normalisation import GROUPS, Norm, of_inputs, replace_batch_norms
from cellcohort.models._patch import checked_patch

if TYPE_CHECKING:
    from pydantic import PositiveInt


class ResNet(nn.Module):
    """Encode a patch by MONAI's ResNet of basic blocks: over the plane of one slice, over the volume of more.

    MONAI's `norm` does not reach the residual blocks (1.6), which keep batch statistics: with these, an
    embedding depends on the other cells of the batch, which a contrastive loss can exploit, and on each
    rank's share of it under DDP. So by default every batch normalisation is replaced by GroupNorm over a
    patch of its own (Wu and He, "Group normalization", ECCV 2018); nothing needs synchronising then.

    Parameters
    ----------
    shape : (int, int, int, int)
        Channels, slices, height and width of one patch.
    embedding : int
        Length of the embedding.
    channels : int
        Channels of the first of four stages; each further one has twice as many, at half the size.
    blocks : int
        Residual blocks in each stage: 1 makes a ResNet-10, 2 a ResNet-18.
    groups : int
        Into which ``norm="group"`` divides the channels of a layer, where it can; else all are one.
    norm : {"batch", "experiment", "layer", "group", "instance", "none"}
        As for :class:`~cellcohort.models.conv2d.Conv2d`.

    Raises
    ------
    ValueError
        `shape` is not that of a patch, a size is below 1, `norm` no choice, or `groups` given where nothing
        is divided.
    """

    def __init__(
        self,
        shape: Sequence[int],
        embedding: PositiveInt = 64,
        channels: PositiveInt = 32,
        blocks: PositiveInt = 1,
        groups: int = GROUPS,
        norm: Norm = "group",
    ) -> None:
        from monai.networks.nets import ResNet as MonaiResNet  # here, so that other encoders do not wait for it

        super().__init__()
        sizes = {"embedding": embedding, "channels": channels, "blocks": blocks, "groups": groups}
        of_image, slices, *_ = checked_patch("ResNet", shape, **sizes)
        if norm != "group" and groups != GROUPS:
            raise ValueError(f"groups={groups} is for norm='group', not norm={norm!r}; leave one of them out.")
        self.flat = slices == 1
        self.inputs = nn.Sequential(*of_inputs(norm, of_image, 2 if self.flat else 3))
        self.network = MonaiResNet(
            "basic",
            layers=[blocks] * 4,
            block_inplanes=[channels * 2**i for i in range(4)],
            spatial_dims=2 if self.flat else 3,
            n_input_channels=of_image,
            num_classes=embedding,
        )
        if norm != "batch":
            replace_batch_norms(self.network, norm, groups)

    def forward(self, patches: Tensor) -> Tensor:
        """Embed standardised samples.

        Parameters
        ----------
        patches : torch.Tensor of float, shape (batch, channels, slices, height, width)
            Standardised patches.

        Returns
        -------
        torch.Tensor of float, shape (batch, embedding)
        """
        return self.network(self.inputs(patches.squeeze(2) if self.flat else patches))
