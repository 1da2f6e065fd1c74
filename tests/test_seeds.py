"""Seeds: every trap of real OpenAPI files and MCP dumps with a small document, and the environments that come out."""

import copy
import json
import re
import time
from importlib import resources
from pathlib import Path

import pytest

from agentomnia.environment.instance import Instance
from agentomnia.environment.state import state_problems
from agentomnia.errors import SeedError
from agentomnia.seeds.document import Document, parse_values, read_values
from agentomnia.seeds.domain import infer_domains
from agentomnia.seeds.mcp import read_mcp
from agentomnia.seeds.naming import MAX_NAME, sentence, singular, snake, tool_names
from agentomnia.seeds.openapi import read_openapi
from agentomnia.seeds.reader import read_seed
from agentomnia.seeds.shape import ShapeReader
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.gate import verify_environment
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.taxonomy.axes import domain

EXAMPLES = Path(str(resources.files("agentomnia.seeds").joinpath("examples")))
ID = {"type": "integer", "readOnly": True}
TEXT = {"type": "string"}


def answer(schema, status="200"):
    return {status: {"description": "ok", "content": {"application/json": {"schema": schema}}}}


def body(schema):
    return {"content": {"application/json": {"schema": schema}}}


def path_parameter(name, schema=None):
    return {"name": name, "in": "path", "required": True, "schema": schema or {"type": "integer"}}


def shop(**changes):
    """A small API of owners and pets; `changes` replace or add schemas, `paths` replaces or adds operations."""
    owner = {"type": "object", "required": ["id", "name"], "properties": {"id": ID, "name": TEXT, "email": TEXT}}
    pet = {
        "type": "object",
        "required": ["id", "name", "owner_id", "status"],
        "properties": {
            "id": ID, "name": TEXT, "owner_id": {"type": "integer"},
            "status": {"type": "string", "enum": ["available", "archived"], "default": "available"},
            "tags": {"type": "array", "items": TEXT},
        },
    }  # fmt: skip
    new_pet = {
        "type": "object",
        "required": ["name", "owner_id"],
        "properties": {k: pet["properties"][k] for k in ("name", "owner_id", "tags")},
    }
    reference = {"$ref": "#/components/schemas/Pet"}
    owners = {"$ref": "#/components/schemas/Owner"}
    paths = {
        "/owners": {
            "get": {"operationId": "listOwners", "responses": answer({"type": "array", "items": owners})},
            "post": {"operationId": "createOwner", "requestBody": body(owners), "responses": answer(owners, "201")},
        },
        "/owners/{ownerId}": {
            "parameters": [path_parameter("ownerId")],
            "get": {"operationId": "getOwner", "responses": answer(owners)},
            "delete": {"operationId": "deleteOwner", "responses": {"204": {"description": "gone"}}},
        },
        "/owners/{ownerId}/pets": {
            "get": {"operationId": "listOwnerPets", "parameters": [path_parameter("ownerId")],
                    "responses": answer({"type": "array", "items": reference})},
        },
        "/pets": {
            "get": {
                "operationId": "listPets",
                "parameters": [
                    {"name": "status", "in": "query", "schema": {"type": "string"}},
                    {"name": "limit", "in": "query", "schema": {"type": "integer"}},
                    {"name": "page", "in": "query", "schema": {"type": "integer"}},
                ],
                "responses": answer({"type": "object", "properties": {"data": {"type": "array", "items": reference}}}),
            },
            "post": {"operationId": "createPet", "requestBody": body(new_pet), "responses": answer(reference, "201")},
        },
        "/pets/{petId}": {
            "parameters": [path_parameter("petId")],
            "get": {"operationId": "getPet", "summary": "Read **one** pet. With more words.",
            "responses": answer(reference)},
            "patch": {"operationId": "updatePet", "requestBody": body({"type": "object", "properties": {"name": TEXT,
            "tags": {"type": "array", "items": TEXT}}}),
                      "responses": answer(reference)},
            "delete": {"operationId": "deletePet", "responses": {"204": {"description": "gone"}}},
        },
        "/pets/{petId}/archive": {"post": {"operationId": "archivePet", "parameters": [path_parameter("petId")],
        "responses": answer(reference)}},
        "/pets/{petId}/groom": {"post": {"operationId": "groomPet", "parameters": [path_parameter("petId")],
        "responses": answer(reference)}},
    }  # fmt: skip
    paths |= changes.pop("paths", {})
    schemas = {"Owner": owner, "Pet": pet, **changes}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Pet shop", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def read(document):
    """Read a document, and hold what every reading must keep: unchanged source, quick, compiles, valid state."""
    before = copy.deepcopy(document)
    started = time.process_time()
    seed = read_openapi(document, "test.json") if "paths" in document else read_mcp(document, "test.json")
    assert time.process_time() - started < 20
    assert document == before
    json.dumps([t.input_schema for t in seed.spec.tools])
    start(seed)
    return seed


def start(seed):
    state = StateMaker(seed.spec).make("s")
    assert not list(state_problems(seed.spec, state))
    return Instance(build_program(seed.spec), state)


def refusal(instance, tool, **arguments):
    before = instance.digest()
    result = instance.call(tool, arguments)
    assert not result["ok"], result
    assert instance.digest() == before
    return result["error"]["code"]


def done(instance, tool, **arguments):
    result = instance.call(tool, arguments)
    assert result["ok"], result
    return result["data"]


def reason(seed, operation, parameter=""):
    return next(u.reason for u in seed.unmodelled if u.operation == operation and u.parameter == parameter)


def parameters(seed, tool):
    return {p.name: p for p in seed.spec.tool(tool).parameters}


# -- what the operations become -----------------------------------------------------------------------------------


def test_create_get_update_delete_behave():
    instance = start(read(shop()))
    owner = done(instance, "create_owner", name="Nadia")["owner"]["owner_id"]
    pet = done(instance, "create_pet", name="Rex", owner_id=owner)["pet"]
    assert pet["status"] == "available"
    assert pet["tags"] == []
    assert done(instance, "get_pet", pet_id=pet["pet_id"])["name"] == "Rex"
    assert done(instance, "get_pet", pet_id=pet["pet_id"])["owner_name"] == "Nadia"
    done(instance, "update_pet", pet_id=pet["pet_id"], name="Max")
    assert done(instance, "list_owner_pets", owner_id=owner)["pets"][0]["name"] == "Max"
    assert refusal(instance, "delete_owner", owner_id=owner) == "conflict"
    done(instance, "delete_pet", pet_id=pet["pet_id"])
    done(instance, "delete_owner", owner_id=owner)
    assert refusal(instance, "get_owner", owner_id=owner) == "not_found"


def test_refusals_leave_the_state_alone():
    instance = start(read(shop()))
    assert refusal(instance, "create_pet", name="Rex", owner_id="OWN-9999") == "not_found"
    assert refusal(instance, "create_pet", name="Rex") == "invalid_argument"
    assert refusal(instance, "update_pet", pet_id="PET-0001") == "invalid_argument"


def test_a_verb_moves_a_status_and_an_unknown_one_is_not_invented():
    seed = read(shop())
    instance = start(seed)
    pet = done(instance, "create_pet", name="Rex", owner_id="OWN-0001")["pet"]["pet_id"]
    assert done(instance, "archive_pet", pet_id=pet)["pet"]["status"] == "archived"
    assert refusal(instance, "archive_pet", pet_id=pet) == "conflict"
    assert "groom_pet" not in {t.name for t in seed.spec.tools}
    assert "no field" in reason(seed, "POST /pets/{petId}/groom")


def test_filters_are_those_that_parameters_name():
    seed = read(shop())
    instance = start(seed)
    found = done(instance, "list_pets", status="archived", limit=2)
    assert all(p["status"] == "archived" for p in found["pets"])
    assert len(found["pets"]) <= 2
    assert "field" in reason(seed, "GET /pets", "page")


def test_required_body_fields_are_required_and_read_only_ones_are_not_taken():
    create = parameters(read(shop()), "create_owner")
    assert create["name"].required
    assert not create["email"].required
    assert "id" not in create
    assert "owner_id" not in create


def test_descriptions_are_plain_and_requests_are_english():
    seed = read(shop())
    assert seed.spec.tool("get_pet").description == "Read one pet."
    for tool in seed.spec.tools:
        assert tool.kind == "query" or tool.ask
        for ask in tool.ask:
            assert tool.name not in ask
            assert "_" not in re.sub(r"\{\w+\}", "", ask)
            assert {p.binds or p.name for p in tool.parameters} >= set(re.findall(r"\{(\w+)\}", ask))
    assert seed.spec.tool("delete_pet").action.undo


def test_the_environments_pass_the_gate():
    assert verify_environment(read(shop()).spec).passed


# -- references that turn in circles (pain 57) --------------------------------------------------------------------


def test_reference_cycles_are_cut_and_missing_references_warned_of():
    comment = {
        "type": "object",
        "required": ["id", "text"],
        "properties": {
            "id": ID, "text": TEXT, "parent": {"$ref": "#/components/schemas/Comment"},
            "replies": {"type": "array", "items": {"$ref": "#/components/schemas/Comment"}},
            "a": {"$ref": "#/components/schemas/A"}, "gone": {"$ref": "#/components/schemas/Nowhere"},
        },
    }  # fmt: skip
    seed = read(
        shop(
            Comment=comment,
            A={"type": "object", "properties": {"b": {"$ref": "#/components/schemas/B"}}},
            B={"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A"}}},
            Self={"allOf": [{"$ref": "#/components/schemas/Self"}, {"type": "object", "properties": {"x": TEXT}}]},
            paths={
                "/comments": {
                    "get": {"operationId": "listComments", "responses": answer({"type": "array",
                    "items": {"$ref": "#/components/schemas/Comment"}})},
                    "post": {"operationId": "createComment",
                    "requestBody": body({"$ref": "#/components/schemas/Comment"}),
                             "responses": answer({"$ref": "#/components/schemas/Comment"})},
                },
                "/comments/{commentId}": {"get": {"operationId": "getComment",
                "parameters": [path_parameter("commentId")],
                                                  "responses": answer({"$ref": "#/components/schemas/Self"})}},
            },
        )
    )  # fmt: skip
    assert any("Nowhere" in note for note in seed.notes)
    comments = seed.spec.entity("Comment")
    assert comments.attribute("text").type in ("string", "text")


def test_a_cut_shape_is_finite_and_marked():
    document = Document(
        {
            "components": {
                "schemas": {"N": {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/N"}}}}
            }
        }
    )
    shape = ShapeReader(document).read({"$ref": "#/components/schemas/N"})
    assert shape.properties["next"].cut
    json.dumps(shape.to_schema())


def test_entities_that_need_each_other_can_be_created():
    head = {
        "type": "object",
        "required": ["id", "name", "team_id"],
        "properties": {"id": ID, "name": TEXT, "team_id": {"type": "integer"}},
    }
    team = {
        "type": "object",
        "required": ["id", "name", "head_id"],
        "properties": {"id": ID, "name": TEXT, "head_id": {"type": "integer"}},
    }

    def crud(one, many, name):
        reference = {"$ref": f"#/components/schemas/{name}"}
        return {
            f"/{many}": {"get": {"operationId": f"list_{many}", "responses": answer({"type": "array",
            "items": reference})},
                         "post": {"operationId": f"create_{one}", "requestBody": body(reference),
                         "responses": answer(reference)}},
            f"/{many}/{{{one}Id}}": {"get": {"operationId": f"get_{one}", "parameters": [path_parameter(f"{one}Id")],
            "responses": answer(reference)}},
        }  # fmt: skip

    read(shop(Head=head, Team=team, paths=crud("head", "heads", "Head") | crud("team", "teams", "Team")))


# -- names (pains 59, 60, 65) -------------------------------------------------------------------------------------


def test_long_names_stay_unique_and_stable():
    long = "get_the_very_long_name_of_an_operation_that_nobody_would_ever_want_to_type"
    wanted = {"GET /a": f"{long}_one", "GET /b": f"{long}_two"} | {f"GET /c{i}": "x" * 63 for i in range(10)}
    names = tool_names(wanted)
    assert len(set(names.values())) == 12
    assert all(len(n) <= MAX_NAME and re.fullmatch(r"[a-z][a-z0-9_]*", n) for n in names.values())
    assert tool_names(dict(reversed(list(wanted.items())))) == names
    assert set(names) == set(wanted)


def test_a_prefix_gives_way_before_the_name_does():
    prefix, name = "p" * 43, "list_" + "n" * 31
    (made,) = tool_names({"GET /x": name}, prefix).values()
    assert made.endswith(f"_{name}")
    assert len(made) == MAX_NAME


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("Car Wash", "car_wash"),
        ("getUserV2", "get_user_v2"),
        ("查询", "get_x"),
        ("", "get_x"),
        ("import", "import_record"),
        ("2fa", "fa"),
    ],
)
def test_odd_operation_ids(written, made):
    assert tool_names({"GET /x": written}) == {"GET /x": made}


def test_clashing_operation_ids_keep_both_tools():
    document = shop()
    document["paths"]["/pets"]["get"]["operationId"] = "find pets"
    document["paths"]["/owners"]["get"]["operationId"] = "find-pets"
    del document["paths"]["/pets/{petId}"]["get"]["operationId"]
    tools = {t.origin: t.name for t in read(document).spec.tools}
    assert tools["GET /pets"] != tools["GET /owners"]
    assert tools["GET /pets"].startswith("find_pets_")
    assert tools["GET /pets/{petId}"] == "get_pets_pet_id"


def test_path_and_body_names_that_collide():
    document = shop()
    update = body({"type": "object", "required": ["petId"], "properties": {"petId": {"type": "integer"}, "name": TEXT}})
    document["paths"]["/pets/{petId}"]["patch"]["requestBody"] = update
    seed = read(document)
    assert list(parameters(seed, "update_pet")) == ["pet_id", "name"]
    done(start(seed), "update_pet", pet_id="PET-0001", name="Max")


def test_keywords_and_reserved_names_as_fields():
    odd = dict.fromkeys(("class", "from", "import", "now", "clock", "self", "list", "rows", "item", "def"), TEXT)
    properties = {"id": ID, "name": TEXT, **odd}
    schema = {"type": "object", "required": ["name", "class", "rows"], "properties": properties}
    seed = read(shop(Owner=schema))
    instance = start(seed)
    owner = done(instance, "create_owner", name="N", class_value="a", rows_value="b", list_value="c")["owner"]
    assert (owner["class_value"], owner["rows_value"], owner["list_value"]) == ("a", "b", "c")


# -- schemas (pain 63) --------------------------------------------------------------------------------------------


def shape_of(schema, **components):
    return ShapeReader(Document({"components": {"schemas": components}})).read(schema)


def test_dialects_become_json_schema():
    nullable = shape_of({"type": "string", "nullable": True, "enum": ["A", None]})
    assert nullable.to_schema() == {"type": ["string", "null"], "enum": ["A", None]}
    assert shape_of({"type": ["string", "null"]}).nullable
    assert shape_of({"minimum": 0, "exclusiveMinimum": True, "type": "number"}).to_schema() == {
        "type": "number",
        "exclusiveMinimum": 0,
    }
    assert shape_of({"minimum": 0, "type": "integer"}).to_schema() == {"type": "integer", "minimum": 0}
    assert shape_of({"anyOf": [{"type": "integer"}, {"type": "null"}]}).to_schema() == {"type": ["integer", "null"]}
    assert shape_of({"const": "x"}).choices == ("x",)


def test_all_of_is_merged_and_one_of_keeps_what_all_demand():
    base = {"type": "object", "required": ["a"], "properties": {"a": TEXT}}
    merged = shape_of(
        {"allOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["b"], "properties": {"b": TEXT}}]}, Base=base
    )
    assert set(merged.properties) == {"a", "b"}
    assert merged.required == {"a", "b"}
    variants = shape_of({"oneOf": [base, {"type": "object", "required": ["c"], "properties": {"a": TEXT, "c": TEXT}}]})
    assert set(variants.properties) == {"a", "c"}
    assert not variants.required


def test_limits_of_a_body_are_those_of_the_parameter():
    price = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 90}
    owner = {"type": "object", "required": ["name", "price"], "properties": {"id": ID, "name": {"type": "string",
    "maxLength": 12}, "price": price,
             "level": {"type": "string", "nullable": True, "enum": ["low", "high", None]}}}  # fmt: skip
    seed = read(shop(Owner=owner))
    create = parameters(seed, "create_owner")
    assert create["price"].json_schema == {"type": "number", "exclusiveMinimum": 0, "maximum": 90}
    assert create["name"].json_schema["maxLength"] == 12
    assert create["level"].json_schema == {"type": ["string", "null"], "enum": ["low", "high", None]}
    instance = start(seed)
    assert refusal(instance, "create_owner", name="N", price=0) == "invalid_argument"
    assert done(instance, "create_owner", name="N", price=1.5, level=None)["owner"]["level"] is None


def test_sub_objects_are_flattened_or_become_references():
    address = {"type": "object", "required": ["city"], "properties": {"city": TEXT, "street": TEXT}}
    pet = {
        "type": "object",
        "required": ["name", "owner"],
        "properties": {"id": ID, "name": TEXT, "owner": {"$ref": "#/components/schemas/Owner"}, "status": TEXT},
    }
    owner = {
        "type": "object",
        "required": ["name", "address"],
        "properties": {"id": ID, "name": TEXT, "address": address},
    }
    seed = read(shop(Owner=owner, Pet=pet))
    assert parameters(seed, "create_owner")["address_city"].required
    assert seed.spec.entity("Pet").attribute("owner_id").target == "Owner"


# -- bodies that are no objects (pain 61) -------------------------------------------------------------------------


def test_non_object_bodies_are_wrapped_or_reported():
    seed = read(
        shop(
            paths={
                "/pets/{petId}/name": {"put": {"operationId": "renamePet", "parameters": [path_parameter("petId")],
                "requestBody": body(TEXT),
                                               "responses": {"200": {"description": "ok"}}}},
                "/pets/{petId}/order": {"put": {"operationId": "orderPets", "parameters": [path_parameter("petId")],
                                                "requestBody": body({"type": "array", "items": TEXT}),
                                                "responses": {"200": {"description": "ok"}}}},
            }
        )
    )  # fmt: skip
    instance = start(seed)
    assert done(instance, "rename_pet", pet_id="PET-0001", name="Max")["pet"]["name"] == "Max"
    assert "list" in reason(seed, "PUT /pets/{petId}/order")


def test_a_tool_with_a_root_that_is_no_object_does_not_take_the_others_with_it():
    dump = json.loads((EXAMPLES / "tracker_mcp.json").read_text())
    dump["tools"] += [
        {"name": "create_note", "description": "A note.", "inputSchema": {"type": "string"}},
        {"name": "list_notes", "description": "Notes.", "inputSchema": {"type": "object"}},
    ]
    seed = read(dump)
    assert "not an object" in reason(seed, "create_note")
    assert "close_issue" in {t.name for t in seed.spec.tools}


# -- keys, sizes, versions ----------------------------------------------------------------------------------------


def test_a_natural_key_names_records():
    topic = {"type": "object", "required": ["slug", "title"], "properties": {"slug": TEXT, "title": TEXT}}
    reference = {"$ref": "#/components/schemas/Topic"}
    slug = path_parameter("slug", TEXT)
    seed = read(
        shop(
            Topic=topic,
            paths={
                "/topics": {"post": {"operationId": "createTopic", "requestBody": body(reference),
                "responses": answer(reference)}},
                "/topics/{slug}": {"get": {"operationId": "getTopic", "parameters": [slug],
                "responses": answer(reference)},
                                   "delete": {"operationId": "deleteTopic", "parameters": [slug],
                                   "responses": {"204": {"description": "gone"}}}},
            },
        )
    )  # fmt: skip
    instance = start(seed)
    done(instance, "create_topic", slug="news", title="News")
    assert refusal(instance, "create_topic", slug="news", title="Again") == "conflict"
    assert done(instance, "get_topic", slug="news")["topic"]["title"] == "News"
    done(instance, "delete_topic", slug="news")
    assert refusal(instance, "get_topic", slug="news") == "not_found"


def test_a_huge_file_is_cut_to_one_environment():
    paths = {}
    for number in range(60):
        reference = (
            {"$ref": "#/components/schemas/Pet"}
            if number == 0
            else {"type": "object", "properties": {"id": ID, "name": TEXT}}
        )
        paths[f"/things{number}s"] = {
            "get": {"operationId": f"list{number}", "responses": answer({"type": "array", "items": reference})},
            "post": {"operationId": f"create{number}", "requestBody": body({"type": "object", "required": ["name"],
            "properties": {"name": TEXT}}),
                     "responses": answer(reference)},
        }  # fmt: skip
    seed = read(shop(paths=paths))
    assert len(seed.spec.entities) <= 20
    assert len(seed.spec.tools) <= 80
    assert any(u.reason == "beyond the size of one environment" for u in seed.unmodelled)


def test_swagger_2_is_read():
    pet = {
        "type": "object",
        "required": ["name"],
        "properties": {"id": {"type": "integer", "readOnly": True}, "name": TEXT, "shelter_id": {"type": "integer"}},
    }
    shelter = {
        "type": "object",
        "required": ["name"],
        "properties": {"id": {"type": "integer", "readOnly": True}, "name": TEXT},
    }

    def crud(many, name):
        reference = {"$ref": f"#/definitions/{name}"}
        return {
            f"/{many}": {
                "get": {"responses": {"200": {"description": "ok", "schema": {"type": "array", "items": reference}}}},
                "post": {"parameters": [{"in": "body", "name": "body", "schema": reference}],
                "responses": {"201": {"description": "ok", "schema": reference}}},
            },
            f"/{many}/{{id}}": {"get": {"parameters": [{"name": "id", "in": "path", "required": True,
            "type": "integer"}],
                                        "responses": {"200": {"description": "ok", "schema": reference}}}},
        }  # fmt: skip

    document = {
        "swagger": "2.0",
        "info": {"title": "Old"},
        "paths": crud("pets", "Pet") | crud("shelters", "Shelter"),
        "definitions": {"Pet": pet, "Shelter": shelter},
    }
    seed = read(document)
    assert seed.spec.entity("Pet").attribute("shelter_id").target == "Shelter"
    instance = start(seed)
    made = done(instance, "post_pets", name="Rex", shelter_id="SHE-0001")["pet"]["pet_id"]
    assert done(instance, "get_pets_id", id=made)["name"] == "Rex"


def test_a_read_only_api_is_refused_with_the_next_action():
    document = shop()
    document["paths"] = {p: {"get": i["get"]} for p, i in document["paths"].items() if "get" in i}
    with pytest.raises(SeedError, match=r"0 that change.*choose a file"):
        read_openapi(document, "static.json")


def test_broken_parts_do_not_break_the_rest():
    document = shop()
    document["paths"] |= {
        "/odd": None,
        "/odder": {"get": {"parameters": [None, 3, {"in": "query"}], "responses": None}},
        "/{x}": {"get": {}},
    }
    document["components"]["schemas"]["Pet"]["properties"]["odd"] = None
    document["components"]["schemas"]["Pet"]["required"] = "name"
    read(document)


# -- MCP ----------------------------------------------------------------------------------------------------------


def wrapped(tools, form):
    plain = [{"name": t["name"], "description": t["description"], "parameters": t["inputSchema"]} for t in tools]
    return {
        "dump": {"tools": tools},
        "list": tools,
        "rpc": {"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}},
        "openai": [{"type": "function", "function": f} for f in plain],
    }[form]


@pytest.mark.parametrize("form", ["dump", "list", "rpc", "openai"])
def test_every_form_of_a_tool_list_is_read(form):
    tools = json.loads((EXAMPLES / "tracker_mcp.json").read_text())["tools"]
    seed = read_mcp(wrapped(tools, form), "tracker.json")
    assert {e.name for e in seed.spec.entities} == {"Project", "Issue", "Comment", "Milestone"}
    assert seed.spec.lineage.kind == "mcp"


def test_mcp_tools_behave():
    seed = read_seed(EXAMPLES / "tracker_mcp.json")
    instance = start(seed)
    project = done(instance, "create_project", name="Search", lead="Noor")["project"]["project_id"]
    issue = done(instance, "create_issue", project_id=project, title="Slow", priority="high")["issue"]
    assert issue["state"] == "open"
    done(instance, "close_issue", issue_id=issue["issue_id"])
    assert refusal(instance, "close_issue", issue_id=issue["issue_id"]) == "conflict"
    done(instance, "reopen_issue", issue_id=issue["issue_id"])
    assert [i["title"] for i in done(instance, "list_issues", project_id=project)["issues"]] == ["Slow"]
    done(instance, "add_comment", issue_id=issue["issue_id"], author="Noor", text="Indeed.")
    assert refusal(instance, "delete_issue", issue_id=issue["issue_id"]) == "conflict"
    assert reason(seed, "ping")


def test_files_and_graphs_come_from_verbs_and_nouns():
    path = {"path": TEXT}

    def tool(name, properties, required):
        return {
            "name": name,
            "description": name,
            "inputSchema": {"type": "object", "properties": properties, "required": required},
        }

    relation = {"type": "object", "required": ["from", "to"], "properties": {"from": TEXT, "to": TEXT}}
    seed = read(
        {
            "tools": [
                tool("read_text_file", path, ["path"]),
                tool("write_file", {**path, "content": TEXT}, ["path", "content"]),
                tool("delete_file", path, ["path"]),
                tool("create_relations", {"relations": {"type": "array", "items": relation}}, ["relations"]),
                tool("get_current_time", {"timezone": TEXT}, ["timezone"]),
                tool("echo", {"text": TEXT}, ["text"]),
                tool("add", {"a": {"type": "number"}, "b": {"type": "number"}}, ["a", "b"]),
            ]
        }
    )
    assert {u.operation for u in seed.left_out} == {"get_current_time", "echo", "add"}
    instance = start(seed)
    done(instance, "write_file", path="/a", content="one")
    done(instance, "write_file", path="/a", content="two")
    assert done(instance, "read_text_file", path="/a")["file"]["content"] == "two"
    assert done(instance, "create_relations", relations=[{"from": "x", "to": "y"}])["created"] == 1
    done(instance, "delete_file", path="/a")
    assert refusal(instance, "read_text_file", path="/a") == "not_found"


def test_many_records_at_once():
    relation = {"type": "object", "required": ["from", "to"], "properties": {"from": TEXT, "to": TEXT}}
    person = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": TEXT, "facts": {"type": "array", "items": TEXT}},
    }

    def tool(name, argument, items, **hints):
        schema = {"type": "object", "properties": {argument: {"type": "array", "items": items}}, "required": [argument]}
        return {"name": name, "description": name, "inputSchema": schema, "annotations": hints}

    seed = read(
        {
            "tools": [
                tool("create_people", "people", person),
                tool("delete_people", "personNames", TEXT),
                tool("create_relations", "relations", relation),
                tool("delete_relations", "relations", relation),
                tool("open_people", "names", TEXT, readOnlyHint=True),
            ]
        }
    )
    assert "marked as only reading" in reason(seed, "open_people")
    instance = start(seed)
    done(instance, "create_people", people=[{"name": "Ada"}, {"name": "Bo", "facts": ["tall"]}])
    assert refusal(instance, "create_people", people=[{"name": "Ada"}]) == "conflict"
    assert refusal(instance, "create_people", people=[{"name": "Cy"}, {"name": "Cy"}]) == "invalid_argument"
    assert refusal(instance, "delete_people", person_names=["Ada", "Nobody"]) == "not_found"
    assert done(instance, "delete_people", person_names=["Ada", "Bo"])["deleted"] == 2
    done(instance, "create_relations", relations=[{"from": "x", "to": "y"}])
    done(instance, "delete_relations", relations=[{"from": "x", "to": "y"}])
    assert refusal(instance, "delete_relations", relations=[{"from": "x", "to": "y"}]) == "not_found"


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["library_api.json", "tracker_mcp.json"])
def test_shipped_examples_pass_the_gate(name):
    assert verify_environment(read_seed(EXAMPLES / name).spec).passed


def test_yaml_stays_what_was_written(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("paths: {/a: {200: x}}\nopenapi: 3.0.0\ncountry: no\nday: 2026-03-09\nflag: true\n")
    values = read_values(file)
    assert values["country"] == "no"
    assert values["day"] == "2026-03-09"
    assert values["flag"] is True
    assert values["paths"]["/a"] == {"200": "x"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"openapi": "3.0.0", "paths": {', "cut short"),
        ("", "empty"),
        ("a: [1", "line 1"),
        ("[" * 100_000, "deep|JSON"),
        ('{"x": 1}', "neither"),
        ("hello", "neither"),
    ],
)
def test_other_files_are_refused_with_the_place(tmp_path, text, says):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(SeedError, match=says):
        read_seed(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SeedError, match="check the path"):
        read_seed(tmp_path / "none.json")


def test_reading_twice_gives_the_same():
    one, two = (read_seed(EXAMPLES / "library_api.json") for _ in range(2))
    assert one.identity == two.identity


def test_domains_are_guessed_from_words():
    assert "Messag" in domain(infer_domains("Send chat messages to contacts and groups")[0]).l2
    assert infer_domains("") == infer_domains("")
    assert all(domain(i) for i in infer_domains("bank accounts, transfers and cards"))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("<p>Lists <b>all</b> pets.</p> More.", "Lists all pets."),
        ("Get a [pet](http://x), e.g. a dog. Then more", "Get a pet, e.g. a dog."),
        ("# Title\nReturns `x`", "Title Returns x."),
        ('Say "hi"', 'Say "hi.'),
        ("", ""),
    ],
)
def test_first_sentences(text, first):
    assert sentence(text) == first


def test_words():
    assert snake("HTTPServerName") == "http_server_name"
    assert [singular(w) for w in ("categories", "addresses", "boxes", "statuses", "people", "news", "leases")] == [
        "category", "address", "box", "status", "person", "news", "lease",
    ]  # fmt: skip


def test_text_and_file_give_the_same_values():
    assert parse_values('{"a": [1, null]}', "x") == {"a": [1, None]}
