"""Encoders in Flax Linen: BERT, RoBERTa, MPNet, RoFormer and ModernBERT.

Models, plan, lint and the converters may import it.
"""
