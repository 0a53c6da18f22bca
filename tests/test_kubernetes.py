"""deploy/kubernetes.yaml, without a cluster: Kubernetes' own schemas take it, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs] -- it has none
import pytest
import yaml

from tests.test_deployment import parsed

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "deploy" / "kubernetes.yaml").read_text()
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))
DEPLOYMENTS = {
    document["metadata"]["name"]: document["spec"] for document in DOCUMENTS if document["kind"] == "Deployment"
}
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def named(kind: str) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for document in DOCUMENTS if document["kind"] == kind}


def container(name: str) -> dict[str, Any]:
    [found] = DEPLOYMENTS[name]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_kubernetes_takes_it(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)  # pyright: ignore[reportUnknownMemberType]


def test_what_kubernetes_does_not_know_is_found() -> None:
    [document] = [
        document for document in yaml.safe_load_all(TEXT) if document["metadata"]["name"] == "perdure-workers"
    ]
    document["spec"]["port"] = document["spec"].pop("ports")
    with pytest.raises(kubernetes_validate.ValidationError):  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_a_pod_runs_one_of_perdures_commands_under_the_limits_that_it_needs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in named("ConfigMap")["perdure"]["data"].items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PERDURE_STREAM_KEY", "k" * 32)
    command, params = parsed([str(argument) for argument in container(name)["args"]])
    assert command.name == name.removeprefix("perdure-")
    pod = DEPLOYMENTS[name]["template"]["spec"]
    rest = params["grace"] + 15 if command.name == "worker" else params["drain"] + 10
    assert pod["terminationGracePeriodSeconds"] > rest
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    where = ports["health"] if command.name == "worker" else ports["http"]
    assert where == (params["health"][1] if command.name == "worker" else params["port"])
    assert ports["metrics"] == int(params["metrics"].partition(":")[2])
    probes = {key: container(name)[key]["httpGet"] for key in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert [probe["path"] for probe in probes.values()] == ["/livez", "/livez", "/readyz"]
    assert {ports[probe["port"]] for probe in probes.values()} == {where}


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_a_pod_is_nobody_and_writes_nowhere_but_where_it_must(name: str) -> None:
    pod = DEPLOYMENTS[name]["template"]["spec"]
    user = re.search(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, int(user[1]))
    rights = container(name)["securityContext"]
    assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_selectors_find_their_pods_and_nothing_else() -> None:
    labels = {name: spec["template"]["metadata"]["labels"] for name, spec in DEPLOYMENTS.items()}
    selected = {("Deployment", name): spec["selector"]["matchLabels"] for name, spec in DEPLOYMENTS.items()}
    selected |= {("Service", name): service["spec"]["selector"] for name, service in named("Service").items()}
    for name, budget in named("PodDisruptionBudget").items():
        selected["PodDisruptionBudget", name] = budget["spec"]["selector"]["matchLabels"]
    for name, policy in named("NetworkPolicy").items():
        selected["NetworkPolicy", name] = policy["spec"]["podSelector"]["matchLabels"]
    for (kind, name), selector in selected.items():
        found = [pod for pod, has in labels.items() if selector.items() <= has.items()]
        assert found == [name.removesuffix("s")], (kind, name)


def test_what_is_referred_to_is_in_the_file_or_on_the_page() -> None:
    assert set(re.findall(r"configMapRef: {name: (\S+)}", TEXT)) == set(named("ConfigMap"))
    assert set(re.findall(r"claimName: (\S+?)}", TEXT)) == set(named("PersistentVolumeClaim"))
    for secret in re.findall(r"secretRef: {name: (\S+?)}|secretName: (\S+?)}", TEXT):
        assert f"secret generic {''.join(secret)} " in OPERATIONS, (
            f"docs/operations.md does not make the secret {secret}"
        )
    for name, service in named("Service").items():
        ports = {port["name"] for port in container(name.removesuffix("s"))["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    [arguments] = [
        spec["template"]["spec"]["containers"][0]["args"] for name, spec in DEPLOYMENTS.items() if "api" in name
    ]
    assert arguments[arguments.index("--stream-from") + 1] in {
        f"{name}:{service['spec']['ports'][0]['port']}" for name, service in named("Service").items()
    }
