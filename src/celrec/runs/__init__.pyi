from celrec.runs.online_run import OnlineRun as OnlineRun
from celrec.runs.run_folder import Run as Run
from celrec.runs.run_folder import load_run as load_run
from celrec.runs.run_folder import save_run as save_run
from celrec.runs.run_folder import trained_run as trained_run
