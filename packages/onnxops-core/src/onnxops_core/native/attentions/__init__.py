"""The attention operators: Attention, FlexAttention, GroupQueryAttention and MultiHeadAttention."""
