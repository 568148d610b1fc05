# Fixtures: ranks that are kept for the next tests, and those of one test alone.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from processes import Job, World

torch.set_num_threads(1)  # as ranks: with other threads torch may round its products otherwise
_worlds = {}


def _world(n):
    alive = n in _worlds and all(p.is_alive() for p in _worlds[n].processes)
    if not alive:
        _worlds[n] = World(n)
    return _worlds[n]


@pytest.fixture
def world():
    """world(n): n processes, kept for the next tests."""
    return _world


@pytest.fixture
def fresh_world():
    """fresh_world(n): n processes of this test alone, for tests in which some die."""
    made = []

    def make(n):
        made.append(World(n))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def job():
    """job(n, body, *arguments): n processes that begin at once, and may die."""
    made = []

    def start(n, body, *arguments):
        made.append(Job(n, body, *arguments))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def pytest_sessionfinish():
    for each in _worlds.values():
        each.close()
