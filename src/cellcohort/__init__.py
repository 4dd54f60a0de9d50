"""Decide which cells go into every training batch of a contrastive model, and see what that did."""
