from flnl.api.models import TrainedModel as TrainedModel
from flnl.api.models import load_model as load_model
from flnl.api.results import RunResults as RunResults
from flnl.api.results import load_run as load_run
from flnl.api.runs import run as run
from flnl.audit import audit as audit
from flnl.audit.result import Audit as Audit
from flnl.core.errors import UserError as UserError

__all__: list[str]
__version__: str
