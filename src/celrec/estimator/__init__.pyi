from celrec.estimator.recommender import Recommender as Recommender
