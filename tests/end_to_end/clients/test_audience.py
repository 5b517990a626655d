"""The official Node and Python libraries call every method of contacts, segments and topics of a running daemon."""

from __future__ import annotations

from typing import Any

import pytest
import resend

from tests.end_to_end.clients.node import Node
from tests.end_to_end.clients.test_clients import NOBODY, base, client, daemon, node
from tests.end_to_end.rig import Daemon

__all__ = ["base", "client", "daemon", "node"]

CSV = "Mail,First,Plan\nimported@example.net,Ida,free\nnobody,,\n"


def imported(daemon: Daemon, import_id: str) -> dict[str, int]:
    found: dict[str, int] = daemon.until(f"/contacts/imports/{import_id}", daemon.facts["api_key"], lambda one: one["completed_at"])[
        "counts"
    ]
    return found


# Node


def test_node_contacts(node: Node) -> None:
    plan = node.call("contactProperties.create", {"key": "node_plan", "type": "string", "fallbackValue": "none"})["id"]
    segment, topic = segment_and_topic(node)
    created = node.call(
        "contacts.create",
        {
            "email": "Node+1@example.net", "firstName": "N", "unsubscribed": False, "properties": {"node_plan": "free"},
            "segments": [{"id": segment}], "topics": [{"id": topic, "subscription": "opt_in"}],
        },
    )  # fmt: skip
    id_ = created["id"]
    assert created == {"object": "contact", "id": id_}
    assert node.call("contacts.create", {"email": "node+1@example.net"})["id"] == id_
    found = node.call("contacts.get", {"email": "node+1@example.net"})
    assert (found["id"], found["properties"]) == (id_, {"node_plan": {"value": "free", "type": "string"}})
    assert node.call("contacts.get", id_)["email"] == "Node+1@example.net"
    assert id_ in [one["id"] for one in node.call("contacts.list")["data"]]
    assert [one["id"] for one in node.call("contacts.list", {"segmentId": segment})["data"]] == [id_]
    assert node.call("contacts.list", {"limit": 1})["object"] == "list"
    assert node.call("contacts.update", {"email": "node+1@example.net", "lastName": "M", "unsubscribed": True})["id"] == id_
    assert node.call("contacts.get", {"id": id_})["unsubscribed"] is True
    assert [one["id"] for one in node.call("contacts.segments.list", {"contactId": id_})["data"]] == [segment]
    assert node.call("contacts.segments.remove", {"email": "node+1@example.net", "segmentId": segment})["deleted"] is True
    assert node.call("contacts.segments.add", {"contactId": id_, "segmentId": segment})["id"] == segment
    changed = node.call("contacts.topics.update", {"id": id_, "topics": [{"id": topic, "subscription": "opt_out"}]})
    assert changed["id"] == id_
    [choice] = [one for one in node.call("contacts.topics.list", {"email": "node+1@example.net"})["data"] if one["id"] == topic]
    assert choice["subscription"] == "opt_out"
    removed = node.call("contacts.remove", {"email": "node+1@example.net"})
    assert removed == {"object": "contact", "id": id_, "contact": id_, "deleted": True}
    assert node.fails("contacts.get", id_) == (404, "not_found")
    assert node.call("contactProperties.remove", plan)["deleted"] is True


def segment_and_topic(node: Node) -> tuple[str, str]:
    segment = node.call("segments.create", {"name": "of node"})["id"]
    return segment, node.call("topics.create", {"name": "Of Node", "defaultSubscription": "opt_out"})["id"]


def test_node_contacts_of_an_audience(node: Node) -> None:
    audience = node.call("audiences.create", {"name": "old"})["id"]
    id_ = node.call("contacts.create", {"audienceId": audience, "email": "old@example.net"})["id"]
    assert [one["id"] for one in node.call("contacts.list", {"audienceId": audience})["data"]] == [id_]
    assert node.call("contacts.get", {"audienceId": audience, "email": "old@example.net"})["id"] == id_
    assert node.call("contacts.update", {"audienceId": audience, "id": id_, "firstName": "O"})["id"] == id_
    assert node.call("contacts.remove", {"audienceId": audience, "email": "old@example.net"})["deleted"] is True
    assert node.call("contacts.get", id_)["first_name"] == "O"
    assert node.call("audiences.get", audience)["name"] == "old"
    assert audience in [one["id"] for one in node.call("audiences.list")["data"]]
    assert node.call("audiences.remove", audience)["deleted"] is True


def test_node_segments_topics_properties(node: Node) -> None:
    segment, topic = segment_and_topic(node)
    assert node.call("segments.get", segment)["name"] == "of node"
    assert node.call("segments.update", segment, {"name": "renamed"})["id"] == segment
    assert node.call("segments.list")["data"][0]["name"] == "renamed"
    assert node.call("segments.remove", segment)["deleted"] is True
    assert node.call("topics.get", topic)["name"] == "Of Node"
    assert node.call("topics.update", {"id": topic, "description": "About"})["id"] == topic
    assert node.call("topics.list")["data"][0]["description"] == "About"
    assert node.call("topics.remove", topic)["deleted"] is True
    seats = node.call("contactProperties.create", {"key": "node_seats", "type": "number", "fallbackValue": 3})["id"]
    assert node.call("contactProperties.get", seats)["fallbackValue"] == 3
    assert node.call("contactProperties.update", {"id": seats, "fallbackValue": 4})["id"] == seats
    assert [one["fallbackValue"] for one in node.call("contactProperties.list")["data"] if one["id"] == seats] == [4]
    assert node.call("contactProperties.remove", seats)["deleted"] is True


def test_node_imports(node: Node, daemon: Daemon) -> None:
    segment, topic = segment_and_topic(node)
    columns = {"email": "Mail", "firstName": "First", "properties": {"node_import": {"column": "Plan", "type": "string"}}}
    given: dict[str, Any] = {"file": {"$blob": CSV}, "columnMap": columns, "onConflict": "upsert"}
    created = node.call(
        "contacts.imports.create", {**given, "segments": [{"id": segment}], "topics": [{"id": topic, "subscription": "opt_in"}]}
    )
    counts = imported(daemon, created["id"])
    assert (counts["total"], counts["failed"]) == (2, 1)
    assert node.call("contacts.imports.get", created["id"])["status"] == "completed"
    assert created["id"] in [one["id"] for one in node.call("contacts.imports.list", {"status": "completed", "limit": 5})["data"]]
    assert [one["email"] for one in node.call("contacts.list", {"segmentId": segment})["data"]] == ["imported@example.net"]


# Python


@pytest.mark.usefixtures("client")
def test_python_contacts() -> None:
    plan = resend.ContactProperties.create({"key": "py_plan", "type": "string", "fallback_value": "none"})["id"]
    segment = resend.Segments.create({"name": "of python"})["id"]
    topic = resend.Topics.create({"name": "Of Python", "default_subscription": "opt_in"})["id"]
    created = resend.Contacts.create(
        {"email": "py+1@example.net", "first_name": "P", "properties": {"py_plan": "free"}, "segments": [{"id": segment}]}
    )  # type: ignore[typeddict-unknown-key]
    id_ = created["id"]
    found: Any = resend.Contacts.get(email="py+1@example.net")
    assert (found["id"], found["properties"]) == (id_, {"py_plan": {"value": "free", "type": "string"}})
    assert id_ in [one["id"] for one in resend.Contacts.list()["data"]]
    assert [one["id"] for one in resend.Contacts.list(segment_id=segment)["data"]] == [id_]
    assert resend.Contacts.update({"id": id_, "unsubscribed": True, "last_name": "Q"})["id"] == id_
    assert resend.Contacts.get(id=id_)["unsubscribed"] is True
    listed: Any = resend.ContactSegments.list({"email": "py+1@example.net"})
    assert [one["id"] for one in listed["data"]] == [segment]
    assert resend.ContactSegments.remove({"contact_id": id_, "segment_id": segment})["id"] == segment
    assert resend.ContactSegments.add({"email": "py+1@example.net", "segment_id": segment})["id"] == segment
    changed = resend.ContactsTopics.update({"id": id_, "topics": [{"id": topic, "subscription": "opt_out"}]})
    assert changed["id"] == id_
    [choice] = [one for one in resend.ContactsTopics.list(email="py+1@example.net")["data"] if one["id"] == topic]
    assert choice["subscription"] == "opt_out"
    removed: Any = resend.Contacts.remove(email="py+1@example.net")
    assert (removed["id"], removed["contact"], removed["deleted"]) == (id_, id_, True)
    with pytest.raises(resend.exceptions.ResendError, match="Contact not found"):
        resend.Contacts.get(id=id_)
    assert resend.ContactProperties.remove(plan)["deleted"] is True


@pytest.mark.usefixtures("client")
def test_python_contacts_of_an_audience() -> None:
    audience = resend.Audiences.create({"name": "old"})["id"]
    id_ = resend.Contacts.create({"audience_id": audience, "email": "old-py@example.net"})["id"]
    assert [one["id"] for one in resend.Contacts.list(audience_id=audience)["data"]] == [id_]
    assert resend.Contacts.get(audience_id=audience, id=id_)["id"] == id_
    assert resend.Contacts.update({"audience_id": audience, "id": id_, "first_name": "O"})["id"] == id_
    assert resend.Contacts.remove(audience_id=audience, email="old-py@example.net")["deleted"] is True
    assert resend.Contacts.get(id=id_)["first_name"] == "O"
    assert resend.Audiences.get(audience)["name"] == "old"
    assert audience in [one["id"] for one in resend.Audiences.list()["data"]]
    assert resend.Audiences.remove(audience)["deleted"] is True


@pytest.mark.usefixtures("client")
def test_python_segments_topics_properties() -> None:
    segment = resend.Segments.create({"name": "of python"})["id"]
    assert resend.Segments.get(segment)["name"] == "of python"
    assert resend.Segments.update(segment, {"name": "renamed"})["id"] == segment
    assert resend.Segments.list()["data"][0]["name"] == "renamed"
    assert resend.Segments.remove(segment)["deleted"] is True
    topic = resend.Topics.create({"name": "Of Python", "default_subscription": "opt_in"})["id"]
    assert resend.Topics.get(topic)["default_subscription"] == "opt_in"
    assert resend.Topics.update(topic, {"description": "About"})["id"] == topic
    assert resend.Topics.list()["data"][0]["description"] == "About"
    assert resend.Topics.remove(topic)["deleted"] is True
    seats = resend.ContactProperties.create({"key": "py_seats", "type": "number", "fallback_value": 3})["id"]
    assert resend.ContactProperties.get(seats)["fallback_value"] == 3
    assert resend.ContactProperties.update({"id": seats, "fallback_value": 4})["id"] == seats
    assert [one["fallback_value"] for one in resend.ContactProperties.list()["data"] if one["id"] == seats] == [4]
    assert resend.ContactProperties.remove(seats)["deleted"] is True
    with pytest.raises(resend.exceptions.ResendError, match="Topic not found"):
        resend.Topics.get(NOBODY)


@pytest.mark.usefixtures("client")
def test_python_imports(daemon: Daemon) -> None:
    segment = resend.Segments.create({"name": "imported"})["id"]
    columns = {"email": "Mail", "first_name": "First", "properties": {"py_import": {"column": "Plan", "type": "string"}}}
    data = CSV.replace("imported@", "imported-py@").encode()
    created = resend.ContactImports.create({"file": data, "column_map": columns, "on_conflict": "skip", "segments": [{"id": segment}]})
    assert imported(daemon, created["id"]) == {"total": 2, "created": 1, "updated": 0, "skipped": 0, "failed": 1}
    assert resend.ContactImports.get(created["id"])["status"] == "completed"
    assert created["id"] in [one["id"] for one in resend.ContactImports.list({"status": "completed"})["data"]]
    assert [one["email"] for one in resend.Contacts.list(segment_id=segment)["data"]] == ["imported-py@example.net"]
