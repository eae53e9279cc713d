"""One sum per case: how to hand given terms to an ATen kernel so that its result is their sum. Needs torch."""
