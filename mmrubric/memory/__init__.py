"""Banks of criteria that a frozen generator is steered by."""

from mmrubric.memory.bank import Bank, BankItem, Finding, Retrieved

__all__ = ["Bank", "BankItem", "Finding", "Retrieved"]
