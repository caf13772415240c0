"""Fits ReLibra to RL frameworks. Each module imports its framework only inside the calls that need
it, so that all can be imported anywhere; see python/examples for one runnable example of each.
"""
