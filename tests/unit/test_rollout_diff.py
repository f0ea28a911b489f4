"""Which field caused a roll, and which stored template is the one that is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.resources.revision import build, of, read
from paceline_operator.rollout.diff import LIVE, boot_spec, changed, with_boot
from paceline_operator.rollout.revision import KEPT, KEY_FIELD, changes, find, kept, next_number
from tests.servings import serving

CASES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"speculation": {"maxTokens": 3}}, ("speculation.maxTokens",)),
    ({"engine": {"extraArgs": ["--a", "--b", "--d"]}}, ("engine.extraArgs[2]",)),
    ({"engine": {"extraArgs": ["--a", "--b"]}}, ("engine.extraArgs[2]",)),
    ({"engine": {"env": [{"name": "A", "value": "2"}]}}, ("engine.env[A].value",)),
    ({"engine": {"env": [{"name": "A", "value": "1"}, {"name": "B"}]}}, ("engine.env[B]",)),
    ({"engine": {"maxModelLen": 4096}}, ("engine.maxModelLen",)),
    ({"engine": {"podTemplate": {"spec": {"priorityClassName": "high"}}}}, ("engine.podTemplate",)),
    ({"model": {"source": "hf://owner/other"}}, ("model.source",)),
    ({"model": {"revision": "main"}, "speculation": {"maxTokens": 7}}, ("model.revision", "speculation.maxTokens")),
    ({"tuning": {"intervalSeconds": 5, "ladder": [3, 0]}}, ()),
    ({"slo": {"tpotMilliseconds": 20}}, ()),
    ({"replicas": 7}, ()),
    ({"suspend": True}, ()),
    ({"rollout": {"maxSurge": 1, "canary": {"observeSeconds": 9}}}, ()),
]
BASE: dict[str, Any] = {"engine": {"extraArgs": ["--a", "--b", "--c"], "env": [{"name": "A", "value": "1"}]}}


@pytest.mark.parametrize(("change", "fields"), CASES)
def test_a_change_is_named_as_users_write_it_and_live_fields_change_nothing(
    change: dict[str, Any], fields: tuple[str, ...]
) -> None:
    merged = {**BASE, **change, "engine": {**BASE["engine"], **change.get("engine", {})}}
    assert changed(boot_spec(serving(**BASE).spec), boot_spec(serving(**merged).spec)) == fields


def test_without_a_plugin_a_table_reaches_the_engine_at_its_start_alone() -> None:
    plain: dict[str, Any] = {"engine": {"plugin": {"injection": "None"}}}
    one, other = (boot_spec(serving(**plain, **more).spec) for more in ({}, {"tuning": {"ladder": [3, 0]}}))
    assert changed(one, other) == ("tuning.ladder",)


def test_ks_that_the_pods_booted_with_are_live_and_others_need_a_boot() -> None:
    def boot(*ladder: int) -> dict[str, Any]:
        return boot_spec(serving(tuning={"ladder": ladder} if ladder else {}).spec)

    running = boot(5, 3, 1, 0)
    assert changed(running, boot(5, 1, 0)) == ()
    assert changed(running, boot(5, 4, 1, 0)) == ("tuning.ladder",)
    assert changed(running, boot()) == ("tuning.ladder",)
    narrower, wider = (serving(tuning={"ladder": ladder}).spec for ladder in ([3, 0], [5, 4, 0]))
    assert with_boot(narrower, running).tuning.ladder == [3, 0]
    assert with_boot(wider, running).tuning.ladder == [5, 3, 1, 0], "until the others run"


def test_a_ladder_of_ks_that_were_not_booted_is_a_rollout_and_another_default_of_ours_is_not() -> None:
    plain, few, more = (
        boot_spec(serving(**spec).spec) for spec in ({}, {"tuning": {"ladder": [3, 0]}}, {"tuning": {"ladder": [4, 0]}})
    )
    assert changed(plain, few) == (), "fewer ks are live"
    assert changed(few, more) == ("tuning.ladder",)
    assert changed(few, plain) == ("tuning.ladder",), "the default has more"
    assert changed({**plain, "ladder": [5, 0]}, plain) == (), "another version chose otherwise"


def test_a_field_that_an_earlier_version_did_not_know_has_the_default_of_today() -> None:
    now = boot_spec(serving().spec)
    then = {**now, "engine": {name: value for name, value in now["engine"].items() if name != "maxNumSeqs"}}
    assert changed(then, now) == ()
    assert changed({**now, "engine": 5}, now) == ("engine",)  # cannot be read: another


def test_what_pods_run_is_told_by_their_template_and_the_rest_by_the_spec() -> None:
    running, asked = serving(speculation={"maxTokens": 3}).spec, serving(replicas=4, tuning={"intervalSeconds": 3}).spec
    found = with_boot(asked, boot_spec(running))
    assert (found.speculation.max_tokens, found.replicas, found.tuning.interval_seconds) == (3, 4, 3)
    assert boot_spec(found) == boot_spec(running)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("abc", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "a", "b"]), inner, max_size=3),
    max_leaves=8,
)
BOOTS = st.dictionaries(st.sampled_from(["model", "engine", "x"]), JSON, max_size=3)


@given(BOOTS, BOOTS)
def test_two_specs_differ_where_a_field_does(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert changed(one, one) == ()
    assert bool(changed(one, other)) == (one != other or _types(one) != _types(other))
    assert set(changed(one, other)) == set(changed(other, one))
    assert not any(field.split(".")[0] in LIVE for field in changed(one, other))


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _types(each) for name, each in value.items()}
    return [_types(each) for each in value] if isinstance(value, list) else type(value)


def test_a_stored_revision_is_read_as_it_was_and_one_of_others_is_not() -> None:
    given = serving()
    made = of("demo", {"spec": {"containers": []}}, boot_spec(given.spec), "2", 7)
    stored = build(given, made)
    assert read(stored) == made
    assert made.name.startswith("demo-")
    for broken in ({}, {**stored, "data": None}, {**stored, "data": {"spec": 1, "template": {}}}):
        assert read({"metadata": {"name": "x"}, **broken}) is None


def test_the_same_spec_rendered_otherwise_is_the_stored_template_and_a_rotated_key_is_not() -> None:
    boot = boot_spec(serving().spec)
    first = of("demo", {"spec": {"a": 1}}, boot, "2", 1)
    assert find([first], boot, "2") is first, "whatever it would be rendered to now"
    assert find([first], boot, "3") is None
    assert changes(first, boot, "3") == (KEY_FIELD,)
    second = of("demo", {"spec": {"a": 2}}, boot, "2", next_number([first]))
    assert second.number == 2
    assert find([first, second], boot, "2") is second
    assert find([first, second], boot, "2", prefer=first.name) is first
    assert first.name != second.name


@given(st.lists(st.integers(1, 12), unique=True, max_size=10), st.sets(st.integers(1, 12)))
def test_what_is_used_is_kept_and_the_newest_of_the_rest(numbers: list[int], used: set[int]) -> None:
    revisions = [of("demo", {"n": number}, {}, "", number) for number in numbers]
    names = {one.name for one in revisions if one.number in used}
    stay = kept(revisions, names)
    assert names <= {one.name for one in stay}
    rest = sorted(one.number for one in revisions if one.number not in used)[-KEPT:]
    assert sorted(one.number for one in stay if one.name not in names) == rest
