from celrec.online.eviction import Eviction as Eviction
from celrec.online.trainer import Learned as Learned
from celrec.online.trainer import OnlineTrainer as OnlineTrainer
