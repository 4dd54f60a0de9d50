"""Samplers of other libraries, each where a :class:`~cellcohort.sampling.BatchSampler` stands, to compare with it."""
