"""Augmentation of whole batches on the device of the model.

Each is a function of (inputs, key); see :class:`cellcohort.datasets.protocol.Views`.
"""
