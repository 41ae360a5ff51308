"""Schedules, the referee that judges them, bounds, baselines and the compiled decoder."""
