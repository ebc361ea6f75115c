"""Tests of disttui; a package, so that helpers are imported as tests.cluster and tests.bench."""
