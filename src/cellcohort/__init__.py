"""Decide which cells go into every training batch of a contrastive model, and see what that did."""

from cellcohort.moved import find_moved_modules

find_moved_modules()
