"""What a program is made of, as CycloneDX 1.5 in JSON."""

import hashlib
import json
import re
import uuid


def purl(crate):
    return f"pkg:cargo/{crate.name}@{crate.version}"


def component(crate):
    found = {
        "type": "library",
        "bom-ref": purl(crate),
        "name": crate.name,
        "version": crate.version,
        "purl": purl(crate),
        "licenses": [{"expression": crate.licence}],
        # Excluded: needed to build it, and no part of it.
        "scope": "required" if crate.is_linked else "excluded",
    }
    if crate.about:
        found["description"] = crate.about.strip()
    if crate.authors:
        found["author"] = ", ".join(crate.authors)
    if crate.checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": crate.checksum}]
    if crate.repository:
        found["externalReferences"] = [{"type": "vcs", "url": crate.repository}]
    return found


def made(crates, program):
    """The whole of it, of the bytes of a program. The same crates and program give the same text: no time of day is in it."""
    own = next(crate for crate in crates if crate.is_ours and crate.name == "systole-cli")
    main = {**component(own), "type": "application"}
    del main["scope"]
    main["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(program).hexdigest()}]
    known = {crate.id for crate in crates}
    links = [
        {"ref": purl(crate), "dependsOn": sorted({purl(needed) for needed, _ in crate.needs if needed.id in known})} for crate in crates
    ]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main, "tools": {"components": [{"type": "application", "name": "packaging/sbom.py", "version": own.version}]}},
        "components": [component(crate) for crate in crates if crate is not own],
        "dependencies": links,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom, sort_keys=True))
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "serialNumber": f"urn:uuid:{serial}", **bom}


def check(bom):
    """What CycloneDX requires, and that each reference leads somewhere. Its whole schema: docs/internals/releases.md."""
    assert bom["bomFormat"] == "CycloneDX" and bom["specVersion"] == "1.5" and bom["version"] >= 1
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bom["serialNumber"])
    components = [bom["metadata"]["component"], *bom["components"]]
    refs = [c["bom-ref"] for c in components]
    assert len(set(refs)) == len(refs), "two components of one name"
    for c in components:
        assert c["type"] in ("application", "library") and c["name"] and c["version"], c
        assert c["licenses"][0]["expression"] and re.fullmatch(r"pkg:cargo/[\w-]+@[\w.+-]+", c["purl"]), c
        for kept in c.get("hashes", []):
            assert kept["alg"] == "SHA-256" and re.fullmatch(r"[0-9a-f]{64}", kept["content"]), c
    for link in bom["dependencies"]:
        assert {link["ref"], *link["dependsOn"]} <= set(refs), link
    assert {link["ref"] for link in bom["dependencies"]} == set(refs)
