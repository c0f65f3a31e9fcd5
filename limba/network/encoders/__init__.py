"""Encoders in Flax Linen: BERT, RoBERTa, MPNet, RoFormer and ModernBERT.

Models, plan and the converters may import it.
"""
