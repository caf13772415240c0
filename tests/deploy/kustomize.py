"""Renders the kustomizations of deploy/kubernetes.

With `kustomize` where it is installed, else with the few features of Kustomize that those files
use; others are refused.
"""

import copy
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import yaml

KNOWN = {"apiVersion", "kind", "resources", "components", "namespace", "patches", "images"}
KNOWN |= {"configMapGenerator"}
# What tells the entries of a list apart in a strategic merge.
MERGE_KEYS = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath"}


def render(folder):
    """The resources of a kustomization, in any order."""
    if shutil.which("kustomize"):
        words = ["kustomize", "build", folder]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return list(yaml.safe_load_all(text))
    return render_here(Path(folder))


def render_here(folder):
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(kustomization) <= KNOWN, f"{folder}: the test's renderer knows only {KNOWN}"
    resources = []
    for name in kustomization.get("resources", []) + kustomization.get("components", []):
        path = folder / name
        resources += render_here(path) if path.is_dir() else read(path)
    for generator in kustomization.get("configMapGenerator", []):
        resources.append(config_map(generator, resources))
    for patch in kustomization.get("patches", []):
        (change,) = read(folder / patch["path"])
        (target,) = (r for r in resources if identity(r) == identity(change))
        merge(target, change)
    for resource in resources:
        if "namespace" in kustomization:
            resource["metadata"]["namespace"] = kustomization["namespace"]
        for container in containers(resource):
            for image in kustomization.get("images", []):
                container["image"] = renamed(container["image"], image)
    return resources


def read(path):
    return list(yaml.safe_load_all(path.read_text()))


def identity(resource):
    return resource["kind"], resource["metadata"]["name"]


def containers(resource):
    return resource.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])


def config_map(generator, resources):
    """The ConfigMap, its name made unique by its content, and the references to it."""
    assert set(generator) == {"name", "literals"}
    data = dict(literal.split("=", 1) for literal in generator["literals"])
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{generator['name']}-{digest}"
    for resource in resources:
        for container in containers(resource):
            for source in container.get("envFrom", []):
                if source["configMapRef"]["name"] == generator["name"]:
                    source["configMapRef"]["name"] = name
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def renamed(image, change):
    assert set(change) <= {"name", "newName", "newTag"}
    name, _, tag = image.partition(":")
    if name != change["name"]:
        return image
    tag = change.get("newTag", tag)
    return change.get("newName", name) + (f":{tag}" if tag else "")


def merge(target, change):
    """A strategic merge: maps by key, the lists of MERGE_KEYS by entry, other values replaced."""
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        elif key in MERGE_KEYS:
            for entry in value:
                merge_entry(target.setdefault(key, []), entry, MERGE_KEYS[key])
        else:
            target[key] = copy.deepcopy(value)


def merge_entry(entries, change, key):
    found = [entry for entry in entries if entry[key] == change[key]]
    if change.get("$patch") == "delete":
        entries.remove(*found)
    elif found:
        merge(found[0], change)
    else:
        entries.append(copy.deepcopy(change))
