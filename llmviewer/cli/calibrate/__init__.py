"""Commands `llmviewer calibrate all|run|fit|engine|validate|ledger`."""
