"""Commands `llmviewer calibrate run|fit|validate|ledger`."""
