"""Multi-level self-correction, then executability filtering (paper, section 4.2.4).

    initialization   no valid state: rules that random records cannot keep are named, the environment is given up
    tool             an unreachable error is taken out of the tool; a tool that cannot succeed is dropped
    environment      a tool whose accepted calls break a rule, a lifecycle or another tool is dropped

Each repair is verified by the whole gate again. What is left after the budget must pass everything.
"""

from __future__ import annotations

from agentomnia.environment.replay import ReplayProcess
from agentomnia.environment.spec import EnvironmentSpec, Guard, Procedure, Tool
from agentomnia.synthesis.environments.compiler import DeclaredError, tool_facts
from agentomnia.synthesis.environments.gate import Finding, Verification, verify_environment
from agentomnia.synthesis.environments.toolset import ToolDecision

REPAIR_BUDGET = 4
MINIMUM_TOOLS = 4


def correct_environment(
    spec: EnvironmentSpec, *, seed: str = "gate", replayer: ReplayProcess | None = None
) -> tuple[EnvironmentSpec, Verification, list[ToolDecision]]:
    """Verify, repair what fails, drop what cannot be repaired, and verify again.

    Returns:
        The corrected specification, the record of its last verification (which may still have failed),
        and what happened to the tools.
    """
    log: list[ToolDecision] = []
    repaired: set[str] = set()
    verification = verify_environment(spec, seed=seed, replayer=replayer)
    for _ in range(REPAIR_BUDGET):
        by_tool = _by_tool(verification)
        if verification.passed or not by_tool:
            break
        tools = []
        for tool in spec.tools:
            kept = _repair(spec, tool, by_tool.get(tool.name, []), repaired, log)
            tools += [kept] if kept is not None else []
        spec = spec.replace_tools(tuple(tools))
        verification = verify_environment(spec, seed=seed, replayer=replayer)
    return spec, _with_minimum(spec, verification), log


def _by_tool(verification: Verification) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in verification.findings:
        if finding.tool is not None:
            found.setdefault(finding.tool, []).append(finding)
    return found


def _with_minimum(spec: EnvironmentSpec, verification: Verification) -> Verification:
    if verification.passed and (len(spec.tools) < MINIMUM_TOOLS or all(t.kind == "query" for t in spec.tools)):
        finding = Finding(check="accepted", evidence=f"only {len(spec.tools)} tools are left, or none that modifies")
        return verification.model_copy(update={"findings": (finding,)})
    return verification


def _repair(
    spec: EnvironmentSpec, tool: Tool, findings: list[Finding], repaired: set[str], log: list[ToolDecision]
) -> Tool | None:
    if not findings:
        return tool
    unreachable = {f.error for f in findings if f.error is not None}
    evidence = f"{findings[0].check}: {findings[0].evidence}"
    if len(unreachable) == len(findings) and tool.name not in repaired:
        rewritten = _without_errors(spec, tool, unreachable)
        if rewritten is not None:
            repaired.add(tool.name)
            log.append(
                ToolDecision(tool=tool.name, decision="rewritten", reason=f"took out what cannot happen: {evidence}")
            )
            return rewritten
    log.append(ToolDecision(tool=tool.name, decision="removed", reason=evidence))
    return None


def _without_errors(spec: EnvironmentSpec, tool: Tool, unreachable: set[int]) -> Tool | None:
    """The tool without the guards behind unreachable errors; `None` where an error is not a guard's."""
    if not isinstance(tool.action, Procedure):
        return None
    errors = tool_facts(spec, tool).errors
    gone = {errors[i] for i in unreachable}
    steps = tuple(
        s for s in tool.action.steps if not (isinstance(s, Guard) and DeclaredError(s.code, s.message) in gone)
    )
    if len(steps) != len(tool.action.steps) - len(unreachable):
        return None
    return tool.model_copy(update={"action": tool.action.model_copy(update={"steps": steps})})
