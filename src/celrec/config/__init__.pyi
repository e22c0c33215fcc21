from celrec.config.building import describe_model as describe_model
from celrec.config.building import make_model as make_model
from celrec.config.building import rebuild_model as rebuild_model
from celrec.config.options import OPTIONS as OPTIONS
from celrec.config.picking import Picked as Picked
from celrec.config.picking import pick as pick
from celrec.config.plan import Plan as Plan
from celrec.config.presets import PRESETS as PRESETS
