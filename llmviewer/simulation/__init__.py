"""Requests over time: arrivals, the engine's scheduler, pools of replicas, percentiles of what users see."""
