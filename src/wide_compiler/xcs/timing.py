"""The clock of this package, imported through this module so that tests can replace it."""

from ..measure.clock import now as now
