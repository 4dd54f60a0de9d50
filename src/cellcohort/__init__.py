"""Decide which cells go into every training batch of a contrastive model, and see what that did."""

from cellcohort.moved import find_moved_modules
from cellcohort.numba_cache import choose_numba_cache, remove_outdated_code

find_moved_modules()
choose_numba_cache()
remove_outdated_code()
