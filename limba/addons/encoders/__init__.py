"""Further families of encoders: DistilBERT, MPNet, RoFormer, ModernBERT, EuroBERT, NomicBERT, ELECTRA and DeBERTa-v3.

Their networks are the core's (`limba.network.encoders`). The core finds the families by the table of add-ons;
nothing imports it.
"""
