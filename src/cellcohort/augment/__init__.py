"""Augmentation of whole batches where the model is: functions of (inputs, key), see
cellcohort.datasets.protocol.Views."""
