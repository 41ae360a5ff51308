"""PAC-ML: how far to partition each arriving training job, so that most jobs meet their deadline."""
