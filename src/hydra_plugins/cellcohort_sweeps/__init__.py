"""What Hydra accepts only from the namespace ``hydra_plugins``: how the jobs of a sweep are chosen and started."""
