//go:build e2e

package e2e

const mutantVariable = "BALEFIRE_E2E_MUTANT"

func runMutant() int { return 0 }
