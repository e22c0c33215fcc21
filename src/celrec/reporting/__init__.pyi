from celrec.reporting.report import Report as Report
from celrec.reporting.report import write_report as write_report
