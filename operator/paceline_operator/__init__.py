"""paceline's operator: reconciles SpeculativeServing objects and keeps k at the right pace."""

import os

# The tuner's matrices have some hundred rows. OpenBLAS would wake a thread per core for them, which spins next to an
# engine that needs the core; it reads this once, when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
