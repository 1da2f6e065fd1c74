"""What TRL's adapter for ORS makes of a server: data set, tools with schemas, an episode, its reward.

No trainer and no model. The argument is the server's address.
"""

import json
import os
import sys

BASE = sys.argv[1]
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["OPENREWARD_SESSION_URL"] = os.environ["OPENREWARD_API_URL"] = BASE

from transformers.utils import get_json_schema  # noqa: E402
from trl.experimental.openreward import OpenRewardSpec  # noqa: E402

spec = OpenRewardSpec(BASE, env_name="Till-1a", split="train")
rows = spec.train_dataset
assert rows["task_index"] == [0, 1] and rows["id"] == ["leave-7", "leave-6"], rows.features

make = spec.environment_factory
first, second = make(), make()
schema = get_json_schema(first.pay)["function"]
assert schema["name"] == "pay" and schema["parameters"]["required"] == ["account", "amount"], schema
assert get_json_schema(first.submit_answer)["function"]["parameters"]["required"] == ["message"]

told = first.reset(task_index=0)
assert "Be exact." in told and "Leave 7 in a1" in told
second.reset(**rows[0])
assert json.loads(first.pay(account="a1", amount=3)) == {"ok": True, "data": {"left": 7, "memo": "none"}}
assert json.loads(second.look(account="a1"))["data"]["balance"] == 10, "two rollouts are apart"
assert first.pay(account="a1", amount="many").startswith("Error: input_validation")
assert json.loads(first.pay(account="a1", amount=99))["error"]["code"] == "precondition_failed"
assert not first.finished and first.reward is None
first.submit_answer(message='{"left": 7}')
assert first.finished and first.reward == 1.0
second.submit_answer(message="done")
assert second.finished and second.reward == 0.0
assert spec.reward_funcs(environments=[first, second]) == [1.0, 0.0]
first.reset(task_index=1)
assert first.reward is None and not first.finished
for environment in (first, second):
    environment._close()
spec._sdk_client.close()
print(json.dumps({"passed": "all"}))
