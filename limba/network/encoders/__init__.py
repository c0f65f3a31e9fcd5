"""Encoders in Flax Linen: BERT, RoBERTa, MPNet, RoFormer, ModernBERT and others.

Models, plan and the converters may import it.
"""
