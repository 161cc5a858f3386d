import json
from pathlib import Path
from pydantic import BaseModel
class Manifest(BaseModel):
    algorithm: str
def make_manifest(f, *, schema, spec, role): return Manifest(algorithm=f.algorithm)
def is_approved(folder, m): return (folder/"approval.json").exists()
def save_approval(folder, m): (folder/"approval.json").write_text(m.model_dump_json())
def load_approval(folder): return Manifest.model_validate_json((Path(folder)/"approval.json").read_text())
def render(m): return str(m)
def allowed(approved, **k): pass
