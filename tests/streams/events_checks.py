"""What the tests of all sources share."""

import json

from polars.testing import assert_frame_equal


def assert_same(found, expected):
    """Both lists hold the same batches: rows, rejected events and offsets."""
    assert [batch.offset for batch in found] == [batch.offset for batch in expected]
    assert [batch.rejected for batch in found] == [batch.rejected for batch in expected]
    for one, other in zip(found, expected, strict=True):
        assert_frame_equal(one.frame, other.frame)


def assert_resumable(make_source, size):
    """A new source goes on after every batch exactly as the first one did; returns the batches."""
    batches = list(make_source().batches(size))
    assert_same(list(make_source().batches(size)), batches)
    for number, batch in enumerate(batches, 1):
        saved = json.loads(json.dumps(batch.offset))
        assert_same(list(make_source().batches(size, saved)), batches[number:])
    return batches


def rows(batches):
    """All rows, in order."""
    return [row for batch in batches for row in batch.frame.rows()]


def rejections(batches):
    """Place and reason of all that was set aside, in order."""
    return [(event.place, event.reason) for batch in batches for event in batch.rejected]


def gathered(source, number, *, size=100, after=None, limit=200):
    """The batches of a live source until `number` events came, rejected ones included."""
    batches = []
    for batch in source.batches(size, after):
        batches.append(batch)
        number -= len(batch.frame) + len(batch.rejected)
        if number <= 0 or len(batches) > limit:
            break
    assert number == 0, f"{number} events did not come"
    return batches
