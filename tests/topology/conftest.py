from hypothesis import settings

# a busy machine is not a fault, and the same examples everywhere make a failure repeatable
settings.register_profile("topology", deadline=None, derandomize=True)
settings.load_profile("topology")
