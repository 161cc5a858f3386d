from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from farfield.models.spec import ModelSpec
from farfield.tasks import Domain, Task, UnknownTask, describe, load, names, register, registry

OFFERED = ("linear-sem", "rect-4", "rotated-digits")


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks registered in a test are gone after it."""
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    load.cache_clear()
    yield
    load.cache_clear()


def tiny(name: str = "tiny", domain: str = "a") -> Task:
    return Task(
        name=name,
        kind="classification",
        domains=(Domain(domain, torch.zeros(2, 1), torch.tensor([0, 1])),),
        classes=("no", "yes"),
        model=ModelSpec(featurizer="identity", input_shape=(1,), outputs=1, hidden=()),
    )


def test_the_built_in_tasks_are_offered_in_alphabetical_order() -> None:
    assert set(OFFERED) <= set(names())
    assert list(names()) == sorted(names())


@pytest.mark.parametrize("name", OFFERED)
def test_what_a_list_says_is_what_loading_gives(name: str) -> None:
    entry, task = describe(name), load(name)
    assert (entry.name, entry.kind, entry.domains, entry.classes) == (
        task.name,
        task.kind,
        task.domain_names,
        len(task.classes),
    )
    assert entry.available
    assert entry.summary


@pytest.mark.parametrize("name", OFFERED)
def test_a_task_fits_its_model(name: str) -> None:
    task = load(name)
    for domain in task.domains:
        assert domain.x.dtype == torch.float32
        assert tuple(domain.x.shape[1:]) == task.model.input_shape
        assert domain.y.ndim == 1
        assert domain.y.dtype == (torch.int64 if task.kind == "classification" else torch.float32)
    assert task.model.outputs in (1, len(task.classes))
    assert set(task.defaults) == {"rounds", "local_epochs", "batch_size", "lr", "momentum"}


def test_a_task_is_loaded_once() -> None:
    assert load("rect-4") is load("rect-4")


def test_a_near_miss_is_answered_with_the_right_name() -> None:
    with pytest.raises(UnknownTask) as caught:
        load("rotated-digit")
    assert str(caught.value) == "unknown task 'rotated-digit'; did you mean 'rotated-digits'?"


def test_a_name_like_no_other_is_answered_with_the_list() -> None:
    with pytest.raises(ValueError) as caught:
        describe("zzz")
    assert str(caught.value) == "unknown task 'zzz'; the tasks are " + ", ".join(names())


@pytest.mark.usefixtures("own_registry")
def test_describing_a_task_does_not_load_it() -> None:
    @register("absent", summary="s", domains=("a",), classes=2, kind="classification", available=lambda: False)
    def loader() -> Task:
        raise AssertionError("the data was read")

    entry = describe("absent")
    assert (entry.available, entry.domains, entry.classes) == (False, ("a",), 2)


@pytest.mark.usefixtures("own_registry")
def test_a_task_that_differs_from_its_registration_is_refused() -> None:
    @register("tiny", summary="s", domains=("b",), classes=2, kind="classification")
    def loader() -> Task:
        return tiny()

    with pytest.raises(ValueError, match=r"task 'tiny' was registered as .*'b'.* but its loader gave .*'a'"):
        load("tiny")


@pytest.mark.usefixtures("own_registry")
def test_a_task_that_promised_no_domains_may_have_any() -> None:
    @register("tiny", summary="s", domains=(), classes=2, kind="classification")
    def loader() -> Task:
        return tiny(domain="seen only now")

    assert describe("tiny").domains == ()
    assert load("tiny").domain_names == ("seen only now",)


@pytest.mark.usefixtures("own_registry")
def test_a_part_of_a_public_set_may_have_fewer_domains_and_classes() -> None:
    @register("tiny", summary="s", domains=("a", "b"), classes=9, kind="classification", exact=False)
    def loader() -> Task:
        return tiny(domain="b")

    assert describe("tiny").classes == 9
    assert load("tiny").domain_names == ("b",)


@pytest.mark.usefixtures("own_registry")
def test_another_loader_cannot_take_a_name_but_the_same_one_can_be_defined_again() -> None:
    def define(domain: str) -> None:
        @register("tiny", summary="s", domains=(domain,), classes=2, kind="classification")
        def loader() -> Task:
            return tiny(domain=domain)

    define("a")
    assert load("tiny").domain_names == ("a",)
    define("b")
    assert load("tiny").domain_names == ("b",)

    with pytest.raises(ValueError, match="task 'tiny' is already registered by "):
        register("tiny", summary="s", domains=("a",), classes=2, kind="classification")(tiny)
