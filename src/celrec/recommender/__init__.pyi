from celrec.recommender.batch import Batch as Batch
from celrec.recommender.batch import FeatureTables as FeatureTables
from celrec.recommender.bias_model import BiasModel as BiasModel
from celrec.recommender.clusters import personalise as personalise
from celrec.recommender.model import Model as Model
from celrec.recommender.negatives import Negatives as Negatives
from celrec.recommender.negatives import with_negatives as with_negatives
