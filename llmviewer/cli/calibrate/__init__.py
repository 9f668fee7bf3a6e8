"""Commands `llmviewer calibrate run|fit|engine|validate|ledger`."""
