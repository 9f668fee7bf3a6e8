"""Steps and groups: numbers of attended query-key pairs against brute force."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.core import workload
from llmviewer.core.workload import Group

new = st.integers(1, 40)
cached = st.integers(0, 60)
limit = st.integers(1, 50)


def group(new_tokens: float, cached_tokens: float, pairs: float | None = None) -> Group:
    return Group(
        batch_size=1.0,
        new_tokens=float(new_tokens),
        cached_tokens=float(cached_tokens),
        logit_positions=1.0,
        attended_new_pairs=pairs,
    )


def brute_force(new_tokens: int, cached_tokens: int, *, window: int = 10**9, chunk: int = 10**9) -> int:
    """Pairs (query, key) with key <= query, fewer than `window` apart, in one chunk."""
    return sum(
        1
        for query in range(cached_tokens, cached_tokens + new_tokens)
        for key in range(query + 1)
        if query - key < window and query // chunk == key // chunk
    )


@given(n=new, c=cached)
def test_causal_pairs_match_brute_force(n: int, c: int) -> None:
    assert group(n, c).attended_pairs() == brute_force(n, c) == n * c + n * (n + 1) // 2


@given(n=new, c=cached, w=limit)
def test_windowed_pairs_match_brute_force(n: int, c: int, w: int) -> None:
    assert group(n, c).attended_pairs(float(w)) == brute_force(n, c, window=w)


@given(n=new, c=cached, size=limit)
def test_chunked_pairs_match_brute_force(n: int, c: int, size: int) -> None:
    assert group(n, c).chunked_pairs(float(size)) == brute_force(n, c, chunk=size)


@given(n=new, c=cached, w=limit)
def test_eager_kernels_compute_at_least_the_attended_pairs(n: int, c: int, w: int) -> None:
    """keys = min(cached, window - 1) + new, for every new token."""
    assert group(n, c).keys(float(w)) == min(c, w - 1) + n
    assert group(n, c).attended_pairs(float(w)) <= n * group(n, c).keys(float(w))


@pytest.mark.parametrize("cached", [0, 1, 4, 7, 8, 12, 1000])
def test_a_draft_tree_attends_within_its_window_or_chunk(cached: int) -> None:
    """Two children of two children: tokens whose paths have 1, 2, 2, 3, 3, 3, 3 tokens, including themselves."""
    paths = (1, 2, 2, 3, 3, 3, 3)
    tree = group(7, cached, pairs=sum(paths))
    seen = sum(min(cached + path, 8) for path in paths)
    if cached + max(paths) <= 8 or cached >= 7:
        assert tree.attended_pairs(8.0) == seen
    if cached % 8 + max(paths) <= 8:
        assert tree.chunked_pairs(8.0) == sum((cached + path - 1) % 8 + 1 for path in paths)
    assert seen <= tree.attended_pairs(8.0) <= tree.tokens * tree.keys(8.0)
    assert tree.chunked_pairs(8.0) <= 7 * 8


def test_a_draft_tree_has_explicit_pairs() -> None:
    """Two chains of two after one root: tokens attend to 1, 2, 3, 2, 3 of the new tokens: 11 pairs, not 15."""
    tree = group(5, 100, pairs=1 + 2 + 3 + 2 + 3)
    assert tree.attended_pairs() == 5 * 100 + 11
    assert group(5, 100).attended_pairs() == 5 * 100 + 15


@given(n=st.integers(1, 64), c=cached, w=limit, parts=st.integers(1, 64))
def test_chunks_of_a_prompt_attend_to_the_same_pairs_as_the_whole(n: int, c: int, w: int, parts: int) -> None:
    ends = sorted({round(n * i / parts) for i in range(parts + 1)})
    pieces = [group(stop - start, c + start) for start, stop in pairwise(ends)]
    for size in (float(w), np.inf):
        assert sum(float(piece.attended_pairs(size)) for piece in pieces) == group(n, c).attended_pairs(size)


def test_step_kinds_differ_only_in_sizes() -> None:
    """(batch, new, cached, logits) of each kind of pass."""
    expected = {
        workload.prefill(4.0, 512.0): (4, 512, 0, 1),
        workload.prefill(4.0, 512.0, cached_tokens=256.0): (4, 512, 256, 1),
        workload.decode(4.0, 512.0): (4, 1, 512, 1),
        workload.verify(4.0, 512.0, draft_tokens=3.0): (4, 4, 512, 4),
        workload.chunk(4.0, 128.0, 512.0): (4, 128, 512, 0),
    }
    for step, numbers in expected.items():
        (only,) = step.groups
        assert (only.batch_size, only.new_tokens, only.cached_tokens, only.logit_positions) == numbers


def test_a_mixed_step_is_the_sum_of_its_groups() -> None:
    """A chunk of 256 tokens with 8 decodes: 264 tokens, 8 rows of logits, 9 sequences."""
    step = workload.mixed(workload.chunk(1.0, 256.0, 0.0), workload.decode(8.0, 1000.0))
    assert (step.tokens, step.logits, step.sequences) == (264, 8, 9)


@pytest.mark.parametrize("kind", [workload.prefill, workload.decode])
def test_a_step_may_contain_many_points(kind: Callable[..., workload.Step]) -> None:
    sizes = np.array([1.0, 7.0, 4096.0])
    many = kind(2.0, sizes).groups[0]
    single = [kind(2.0, size).groups[0] for size in sizes]
    assert list(np.broadcast_to(many.attended_pairs(), 3)) == [one.attended_pairs() for one in single]
    assert list(np.broadcast_to(many.attended_pairs(64.0), 3)) == [one.attended_pairs(64.0) for one in single]


def test_selected_passes_of_a_group_keep_eviction_and_mask() -> None:
    group = Group(
        batch_size=np.array([1.0, 2.0, 3.0]),
        new_tokens=np.array([4.0, 5.0, 6.0]),
        cached_tokens=np.array([100.0, 200.0, 300.0]),
        logit_positions=np.ones(3),
        attended_new_pairs=np.array([7.0, 8.0, 9.0]),
        kept=0.5,
    )
    some = group.select(np.array([0, 2]))
    assert some.kept == 0.5
    assert list(some.remaining_tokens) == [50.0, 150.0]
    assert some.attended_new_pairs is not None
    assert list(np.asarray(some.attended_new_pairs)) == [7.0, 9.0]
    assert list(group.select(slice(1, 2)).tokens) == [10.0]


def test_steps_of_the_same_numbers_have_one_key_and_many_passes_have_none() -> None:
    contexts = np.array([64.0, 65.0])
    assert workload.decode(2.0, contexts).key == workload.decode(2.0, contexts.copy()).key
    assert workload.decode(2.0, contexts).key != workload.decode(2.0, contexts + 1.0).key
    assert workload.decode(2.0, contexts).key != workload.decode(2.0, contexts[:1]).key
    assert workload.decode(2.0, np.ones(2000)).key is None
