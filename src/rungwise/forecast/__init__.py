"""Peak memory of a run without running it: real operators on fake tensors, by the code that trains.

from rungwise.forecast import forecast
forecast(settings, config).peak_mib
"""

from .peak import Forecast, NoForecast, forecast

__all__ = ["Forecast", "NoForecast", "forecast"]
