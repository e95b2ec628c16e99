"""What holds for every test: properties are judged by what they find, never by how fast the machine is that looks."""

from hypothesis import HealthCheck, settings

settings.register_profile("lattice", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("lattice")
