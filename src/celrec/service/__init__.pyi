from celrec.service.app import make_app as make_app
from celrec.service.app import serve as serve
from celrec.service.guard import ApiKey as ApiKey
from celrec.service.guard import Limits as Limits
from celrec.service.service import Service as Service
