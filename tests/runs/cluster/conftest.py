"""The clusters of these tests are on loopback, which Ray is told before it is imported."""

import os

from farfield.federation.engines.ray_instance import LOOPBACK, RAY_SETTINGS

os.environ.update(RAY_SETTINGS | LOOPBACK)
