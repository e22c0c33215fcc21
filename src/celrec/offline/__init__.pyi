from celrec.offline.fitting import Fit as Fit
from celrec.offline.fitting import fit as fit
from celrec.offline.solver import Solver as Solver
from celrec.offline.solver import ValidationRecord as ValidationRecord
from celrec.offline.training import OfflineTraining as OfflineTraining
