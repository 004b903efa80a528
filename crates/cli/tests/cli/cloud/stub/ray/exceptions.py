class RayError(Exception):
    """What Ray raises where a machine is lost."""
