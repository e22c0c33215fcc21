from celrec.inference.explanation import Explainer as Explainer
from celrec.inference.explanation import Explanation as Explanation
from celrec.inference.explanation import Member as Member
from celrec.inference.export import export_run as export_run
from celrec.inference.graph_files import Scorer as Scorer
from celrec.inference.top_items import TopItems as TopItems
from celrec.inference.top_items import best_items as best_items
from celrec.inference.top_k import TopK as TopK
